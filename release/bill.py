"""The bill of materials in a wheel, without what no scanner asks for: components keep their names, versions, licenses, hashes and addresses."""

import base64
import hashlib
import json

NEEDLESS = ("description", "author")
"""Of each component; a tenth of a percent of the wheel."""


def shorter(files):
    """The files of a wheel, by name, with a shorter bill and its new line in `RECORD`."""
    files = dict(files)
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    lines = files[record].decode().splitlines()
    for name in [name for name in files if name.endswith(".cyclonedx.json")]:
        bill = json.loads(files[name])
        for component in [bill["metadata"]["component"], *bill["components"]]:
            for key in NEEDLESS:
                component.pop(key, None)
        content = files[name] = json.dumps(bill, separators=(",", ":")).encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        line = f"{name},sha256={digest},{len(content)}"
        lines = [line if one.startswith(f"{name},") else one for one in lines]
    files[record] = "".join(f"{line}\n" for line in lines).encode()
    return files
