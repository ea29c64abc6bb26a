"""Nothing that a script makes on a virtual GPU is uploaded to the Hugging Face Hub: its weights were never trained.

Downloads go on as usual. `--keep-files` lets uploads go, too.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from typing import Any

from oomph import _protocol
from oomph._import_hooks import on_import
from oomph._says import say


def watch() -> None:
    """From the import of the Hub's client on."""
    if os.environ.get(_protocol.OVERLAY):
        on_import("huggingface_hub.hf_api", _Uploads)


class _Uploads:
    """Stands in for the functions of `huggingface_hub.HfApi` that upload to the Hub."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._said = False
        api = module.HfApi
        commits = ("create_commit", "upload_file", "upload_folder")
        stand_ins = dict.fromkeys(commits, self._commit) | dict(
            create_repo=self._repository, upload_large_folder=lambda *_: None
        )
        for name, stand_in in stand_ins.items():
            original = getattr(api, name, None)
            if original is not None:
                setattr(api, name, self._instead(original, stand_in))
                # The module's own function is the method of an instance.
                setattr(module, name, getattr(module.api, name))

    def _instead(self, original: Any, stand_in: Any) -> Any:
        @functools.wraps(original)
        def left_out(api: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
            if not self._said:
                self._said = True
                say(
                    "nothing is uploaded to the Hugging Face Hub from a virtual GPU (--keep-files uploads it)"
                )
            return stand_in(api.endpoint, f"{api.endpoint}/{repo_id}", kwargs)

        return left_out

    def _repository(self, endpoint: str, url: str, options: dict[str, Any]) -> Any:
        return self._module.RepoUrl(url, endpoint=endpoint)

    def _commit(self, endpoint: str, url: str, options: dict[str, Any]) -> Any:
        kind = self._module.CommitInfo
        # Older ones know one endpoint.
        where = dict(_endpoint=endpoint) if "_endpoint" in kind.__dataclass_fields__ else {}
        made = kind(
            commit_url=f"{url}/commit/none",
            commit_message=str(options.get("commit_message") or ""),
            commit_description="",
            oid="none",
            **where,
        )
        if not options.get("run_as_future"):
            return made
        later: concurrent.futures.Future[Any] = concurrent.futures.Future()
        later.set_result(made)
        return later
