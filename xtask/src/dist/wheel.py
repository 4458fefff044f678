"""Builds a wheel that carries a program: wheel.py VERSION TAG PROGRAM FOLDER."""

import base64
import hashlib
import pathlib
import stat
import sys
import zipfile

version, tag, program, folder = sys.argv[1:]
name = f"sluicegate_cli-{version}"
metadata = f"""Metadata-Version: 2.1
Name: sluicegate-cli
Version: {version}
Summary: Rate limiter for APIs, AI models and queues: the sluicegate command
License: Apache-2.0
Requires-Python: >=3.8
"""
files = {
    f"{name}.data/scripts/sluicegate": pathlib.Path(program).read_bytes(),
    f"{name}.dist-info/METADATA": metadata.encode(),
    f"{name}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: sluicegate xtask\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    f"{name}.dist-info/licenses/LICENSE": pathlib.Path("LICENSE").read_bytes(),
}
record = ""
with zipfile.ZipFile(pathlib.Path(folder) / f"{name}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, content in files.items():
        # A fixed time, so that the same contents give the same bytes.
        info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
        # pip makes a file executable only if it is marked as a regular one.
        info.external_attr = (stat.S_IFREG | (0o755 if "/scripts/" in path else 0o644)) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    info = zipfile.ZipInfo(f"{name}.dist-info/RECORD", (2020, 1, 1, 0, 0, 0))
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    wheel.writestr(info, record + f"{name}.dist-info/RECORD,,\n")
