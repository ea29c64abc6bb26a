"""Validates documents that oomph writes with their schemas in `docs/schemas`."""

import functools
import json
import pathlib

import jsonschema_rs

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas"


def read(text):
    """A document that states a format, read from its text.

    Raises if it is not as the schema says, or has a field that the schema lacks.
    """
    document = json.loads(text)
    error = next(validator(document["format"]).iter_errors(document), None)
    assert error is None, f"{document['format']}: {error}"
    return document


@functools.cache
def validator(format):
    """The validator of a format, such as `oomph.run/1`."""
    name = format.replace("oomph.", "", 1).replace("/", "-")
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    return jsonschema_rs.Draft202012Validator(closed(schema))


def closed(schema, is_part=False):
    """A schema under which objects have only the fields that it names. Readers must let others pass.

    A part describes some fields of an object that another schema closes.
    """
    if isinstance(schema, list):
        return [closed(one, is_part) for one in schema]
    if not isinstance(schema, dict):
        return schema
    has_fields = "properties" in schema
    result = {}
    for key, value in schema.items():
        if key in ("const", "enum", "default", "required"):
            result[key] = value
        elif key in ("properties", "$defs"):
            result[key] = {name: closed(one) for name, one in value.items()}
        else:
            of_same = key in ("oneOf", "anyOf", "allOf") and (has_fields or is_part)
            result[key] = closed(value, of_same)
    if has_fields and not is_part and "additionalProperties" not in schema:
        result["unevaluatedProperties"] = False
    return result
