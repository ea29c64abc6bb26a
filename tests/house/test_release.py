"""What a release does to a wheel."""

import base64
import hashlib
import json
import runpy

from tests.support.command import ROOT

SHORTER = runpy.run_path(f"{ROOT}/release/bill.py")["shorter"]


def test_a_shorter_bill_of_materials_is_that_of_the_record():
    component = {
        "name": "zmij",
        "version": "1.0",
        "description": "text",
        "author": "a person",
        "hashes": [{"alg": "SHA-256"}],
    }
    bill = {"metadata": {"component": dict(component)}, "components": [component]}
    files = {
        "oomph/__init__.py": b"",
        "oomph-1.dist-info/sboms/oomph.cyclonedx.json": json.dumps(bill, indent=2).encode(),
        "oomph-1.dist-info/RECORD": b"oomph/__init__.py,sha256=x,0\noomph-1.dist-info/sboms/oomph.cyclonedx.json,sha256=old,7\noomph-1.dist-info/RECORD,,\n",
    }
    found = SHORTER(files)
    assert list(found) == list(files)
    name = "oomph-1.dist-info/sboms/oomph.cyclonedx.json"
    bill = json.loads(found[name])
    kept = {key: component[key] for key in ("name", "version", "hashes")}
    assert bill == {"metadata": {"component": kept}, "components": [kept]}
    digest = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=").decode()
    assert found["oomph-1.dist-info/RECORD"].decode().splitlines() == [
        "oomph/__init__.py,sha256=x,0",
        f"{name},sha256={digest},{len(found[name])}",
        "oomph-1.dist-info/RECORD,,",
    ]
