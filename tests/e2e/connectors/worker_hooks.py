# SPDX-License-Identifier: Apache-2.0
"""The worker's hooks that vLLM's ``KVConnectorBase_V1`` demands, for those who need few of them.

It needs nothing of the project's, so that an unpatched vLLM can be driven with it.
"""


class EmptyWorkerHooks:
    """Hooks that do nothing; stands before vLLM's class among the bases."""

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass
