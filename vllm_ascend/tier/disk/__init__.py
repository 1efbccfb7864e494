# SPDX-License-Identifier: Apache-2.0
"""A disk below the memory of backend ``host``: what an engine leaves there, the next one finds.

Objects are files, written behind the steps and read in front of loads, by threads of the
scheduler's process. Headers and checksums are the objects' own: a file that is torn or was changed
is not loaded.

===========  ===============================================================
module       what it does
===========  ===============================================================
``names``    names of files, which tell nobody what was asked
``files``    the files themselves
``index``    what is on the disk, and what is given up first
``threads``  writes and reads beside the steps
``others``   what other engines do to the same files
``level``    what is asked of them, and what has become of it
===========  ===============================================================
"""
