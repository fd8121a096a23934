"""What the documentation shows runs, and what it points to is there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(#[^)\s]*)?\)")
TARGET = re.compile(r"\bmake ([a-z]+)\b")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


class Program(NamedTuple):
    """A block of Python, the name under which the page saves it, and what the page says that it prints."""

    name: str
    text: str
    output: str | None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def programs(page: Path) -> list[Program]:
    """The Python blocks of a page. ``# name.py`` in the first line names the file; a ``text`` block is the output."""
    blocks = BLOCK.findall(page.read_text("utf-8"))
    found = []
    for number, (language, text) in enumerate(blocks):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", text)
            after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            output = after[1] if after[0] == "text" else None
            found.append(Program(named[1] if named else f"block_{number}.py", text, output))
    return found


LOGGED = re.compile(r"workflow '\w+' instance '[\w-]+' (fails|is held): ")


def run(program: Program, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / program.name).write_text(program.text, "utf-8")
    command = [sys.executable, "-W", "error", program.name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)], ids=name_of)
def test_every_python_block_runs_as_printed(page: Path, tmp_path: Path) -> None:
    # The blocks of a page share a folder, in order: a later one may import an earlier one.
    for program in programs(page):
        ended = run(program, tmp_path)
        # A program that shows a failing or a held instance also shows that it is logged, without a set-up for logging.
        unexpected = [line for line in ended.stderr.splitlines() if not LOGGED.match(line)]
        assert not unexpected, f"{program.name} says:\n{ended.stderr}"
        assert ended.returncode == 0, program.name
        if program.output is not None:
            assert ended.stdout == program.output, program.name


def test_the_first_workflow_of_the_readme_can_be_run_again_on_the_same_file(tmp_path: Path) -> None:
    first = programs(ROOT / "README.md")[0]
    assert [run(first, tmp_path).stdout for _ in range(2)] == [first.output, first.output]


def test_the_first_workflow_of_the_readme_is_short() -> None:
    lines = [line for line in programs(ROOT / "README.md")[0].text.splitlines() if line.strip()]
    assert len(lines) <= 20


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = [target for target, _ in LINK.findall(page.read_text("utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_is_named_exists(page: Path) -> None:
    missing = []
    for path, test in TEST.findall(page.read_text("utf-8")):
        file = ROOT / path
        if not file.is_file() or (test and f"def {test}(" not in file.read_text("utf-8")):
            missing.append(f"{path}::{test}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_command_that_is_named_exists(page: Path) -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    shown = "\n".join(text for _, text in BLOCK.findall(page.read_text("utf-8")))
    shown += "\n".join(re.findall(r"`[^`\n]+`", page.read_text("utf-8")))
    assert set(TARGET.findall(shown)) - known == set()


def test_every_page_of_the_documentation_can_be_reached_from_its_index() -> None:
    index = ROOT / "docs" / "index.md"
    seen = {index}
    pending = [index]
    while pending:
        page = pending.pop()
        for target, _ in LINK.findall(page.read_text("utf-8")):
            linked = (page.parent / target).resolve()
            if linked.suffix == ".md" and linked.exists() and linked not in seen:
                seen.add(linked)
                pending.append(linked)
    assert [name_of(page) for page in (ROOT / "docs").rglob("*.md") if page not in seen] == []


def test_every_module_that_the_architecture_names_exists() -> None:
    names = re.findall(r"`([\w/]+\.(?:py|sql))`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert len(names) > 10
    assert [name for name in names if not (ROOT / "src" / "workerflow" / name).is_file()] == []


def test_the_readme_names_a_test_or_a_later_release_for_each_of_the_eleven_promises() -> None:
    rows = re.findall(r"^\| (G\d+) \|(.*)\|(.*)\|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert [number for number, _, _ in rows] == [f"G{number}" for number in range(1, 12)]
    assert [number for number, _, shown in rows if not TEST.search(shown) and "later release" not in shown] == []


def test_decisions_are_at_most_forty_lines_and_say_what_would_change_them() -> None:
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        text = page.read_text("utf-8")
        assert len(text.splitlines()) <= 40, name_of(page)
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Context", "Choice", "Alternatives", "What would change our mind"], name_of(page)
