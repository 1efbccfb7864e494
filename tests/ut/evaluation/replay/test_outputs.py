# SPDX-License-Identifier: Apache-2.0
"""Where results may go: folders are made last, finished results are never lost."""

import json

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.outputs import prepare_files, prepare_folder, spare_finished
from vllm_ascend_evaluation.replay.report.json_file import write_whole


def test_a_file_may_lie_in_the_folder_that_is_yet_to_be_made(tmp_path):
    out = tmp_path / "new" / "out"
    prepare_folder(out, {"--png": out / "pictures" / "summary.png"})
    assert (out / "pictures").is_dir()


def test_a_file_elsewhere_needs_its_folder_and_nothing_is_made(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(BadInputError, match=r"^--png .*x.png: there is no folder .*nowhere"):
        prepare_folder(out, {"--png": tmp_path / "nowhere" / "x.png"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "deep/deeper"])
def test_a_file_in_place_of_a_folder(tmp_path, below):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadInputError, match=r"^--out .*file.* is a file, expected a folder"):
        prepare_folder(file / below, {})
    with pytest.raises(BadInputError, match=r"^--json .*file.* is a file, expected a folder"):
        prepare_files({"--png": tmp_path / "new" / "x.png", "--json": file / below / "x.json"})
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "report.json").mkdir()
    with pytest.raises(BadInputError, match=r"^--out .*report.json: is a folder"):
        prepare_folder(tmp_path, {})
    with pytest.raises(BadInputError, match=r"^--png .*: is a folder"):
        prepare_folder(tmp_path / "out", {"--png": tmp_path})


@pytest.mark.parametrize(
    ("there", "complete", "is_spared"),
    [
        (None, False, False),
        ({"complete": False}, False, False),
        ("no JSON", False, False),
        ([1], False, False),
        ({"complete": True}, True, False),
        ({"complete": True}, False, True),
    ],
)
def test_only_a_partial_report_spares_and_only_a_finished_one(tmp_path, there, complete, is_spared):
    report = tmp_path / "report.json"
    if there is not None:
        report.write_text(there if isinstance(there, str) else json.dumps(there))
    files = [report, None, tmp_path / "summary.png"]
    spared = [tmp_path / "report.partial.json", None, tmp_path / "summary.partial.png"]
    assert spare_finished(files, complete=complete) == (spared if is_spared else files)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    file = tmp_path / "x.json"
    write_whole(file, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "\ud800")
    blocked = tmp_path / "folder"
    (blocked / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_whole(blocked, b"data")
    assert file.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", "folder"}
