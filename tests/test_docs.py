"""Everything public is in the reference."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import workerflow
from workerflow import Settings, WorkflowError, errors
from workerflow.testing import SimulatedEngine

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
DOCUMENTED = [
    "SimulatedEngine",
    *(
        name
        for name in workerflow.__all__
        if isinstance(value := getattr(workerflow, name), type)
        and not issubclass(value, BaseException)
        and value is not Settings  # It has a page of its own, with a stricter test.
    ),
]


def read(page: str) -> str:
    return (REFERENCE / page).read_text("utf-8")


def section(page: str, name: str) -> str:
    """What stands under the heading of a name, up to the next heading."""
    found = re.search(rf"^#+ `{name}`\n(.*?)(?=^#|\Z)", read(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no heading `{name}`"
    return found[1]


def names_in(text: str) -> set[str]:
    """Every name within backticks, up to its first parenthesis."""
    return {span.partition("(")[0] for span in re.findall(r"`([^`\n]+)`", text)}


def table_rows(page: str) -> dict[str, list[str]]:
    """The cells of each row of a page's tables, by the name in the first one."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", read(page), re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def test_every_public_name_is_in_the_api_reference() -> None:
    assert set(workerflow.__all__) - names_in(read("api.md")) - names_in(read("errors.md")) == set()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_member_is_in_the_section_of_its_class(name: str) -> None:
    value = SimulatedEngine if name == "SimulatedEngine" else getattr(workerflow, name)
    known = names_in(section("api.md", name))
    assert [member for member in vars(value) if not member.startswith("_") and member not in known] == []


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    rows = table_rows("settings.md")
    assert {name: row[0] for name, row in rows.items()} == {
        field.name: f"`{field.default!r}`" for field in fields(Settings)
    }


def test_every_setting_is_in_the_reference_with_its_unit() -> None:
    units = {"_s": "s", "_ms": "ms"}
    assert {
        name: row[1]
        for name, row in table_rows("settings.md").items()
        for suffix, unit in units.items()
        if name.endswith(suffix) and row[1] != unit
    } == {}


def test_every_error_is_in_the_reference() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, WorkflowError) and value is not WorkflowError
    }
    assert names == set(table_rows("errors.md"))


def test_the_reference_names_nothing_that_is_not_there() -> None:
    known = {*workerflow.__all__, "SimulatedEngine"}
    headings = re.findall(r"^#+ `(\w+)", read("api.md"), re.MULTILINE)
    assert [name for name in headings if name not in known] == []
    assert headings != []
