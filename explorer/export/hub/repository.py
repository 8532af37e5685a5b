"""A dataset's repository on the Hub: what is in it, and whether we may write to it.

Owns: creating it, its visibility and gate, and refusing one that is not ours.
Must not know: how files reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import DatasetInfo, RepoFile

from explorer.errors import HubConflict, HubNotFound
from explorer.export.hub.client import HubClient
from explorer.export.hub.ours import folders_of, is_ours
from explorer.export.hub.reading import Digests
from explorer.export.hub.target import CARD, MANIFEST

Gate = Literal["", "auto", "manual"]
ATTRIBUTES = ".gitattributes"
# In the description of each of our commits: how one is known whose publishing broke off.
BY_US = "Published by Rollout Explorer"
_ASKED_AT_ONCE = 500
_GATES = {"": "no gate", "auto": "an automatic gate", "manual": "a manual gate"}


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file that is to be there."""

    path: str
    local: Path
    digests: Digests

    def same(self, there: RepoFile | None) -> bool:
        """Whether the Hub has just this."""
        if there is None:
            return False
        if there.lfs is not None:
            return bool(there.lfs.sha256 == self.digests.sha256)
        return bool(there.blob_id == self.digests.git)


@dataclass(frozen=True)
class Repository:
    """A dataset repository, asked through a client."""

    repo_id: str
    client: HubClient

    @property
    def title(self) -> str:
        return f"the dataset {self.repo_id} on the Hub"

    def info(self) -> DatasetInfo | None:
        """What the Hub tells of it; None where it is not, or not for this token."""
        api = self.client.api
        try:
            return self.client.call(
                f"look at {self.repo_id}", lambda: api.dataset_info(self.repo_id)
            )
        except HubNotFound:
            return None

    def create(self, private: bool) -> None:
        """Makes it; one that is there already is looked at like any other, afterwards."""
        api = self.client.api
        try:
            self.client.call(
                f"create {self.repo_id}",
                lambda: api.create_repo(self.repo_id, repo_type="dataset", private=private),
            )
        except HubConflict:
            # An earlier try of ours whose answer was lost, or somebody else's.
            return

    def there(self, paths: list[str], revision: str) -> dict[str, RepoFile]:
        """Those of `paths` that are in a revision."""
        found = {}
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            found.update(self._some(paths[start : start + _ASKED_AT_ONCE], revision))
        return found

    def _some(self, paths: list[str], revision: str) -> dict[str, RepoFile]:
        api = self.client.api
        infos = self.client.call(
            f"look at the files of {self.repo_id}",
            lambda: api.get_paths_info(
                self.repo_id, paths, repo_type="dataset", revision=revision
            ),
        )
        return {info.path: info for info in infos if isinstance(info, RepoFile)}

    def load(self, path: str, to: Path, revision: str | None, most: int | None = None) -> None:
        """Writes one of its files to `to`."""
        address = self.client.file_address(self.repo_id, path, revision)
        self.client.download(f"read {path} of {self.repo_id}", address, to, most)

    # -- whether it may be written to --------------------------------------------------

    def check_rights(self) -> None:
        """Raises:
        HubForbidden: the token may not write to it.
        """
        api = self.client.api
        self.client.call(
            f"write to {self.repo_id}",
            lambda: api.auth_check(self.repo_id, repo_type="dataset", write=True),
        )

    def check_content(self, names: set[str], manifest: bytes | None) -> None:
        """Raises:
        HubConflict: it holds something else than a dataset of ours.
        """
        if manifest is not None:
            if not is_ours(manifest):
                raise HubConflict(
                    f"{self.title} has a {MANIFEST} that is none of ours; choose another name"
                )
            return
        foreign = sorted(names - {ATTRIBUTES, CARD})
        if foreign and not self._begun_by_us():
            raise HubConflict(
                f"{self.title} holds something else ({ascii(foreign[0])[:80]} for one), and "
                "nothing is written over; choose another name"
            )

    def files_of_ours(
        self, names: set[str], manifest: bytes | None
    ) -> tuple[set[str], set[str]]:
        """What is ours to take away, and what is somebody else's. Files that no manifest names
        yet are ours, too: those of an upload that did not come to its end.

        Raises:
            HubNotFound: nothing there is ours.
        """
        data = names - {ATTRIBUTES, CARD}
        if manifest is None:
            if not self._begun_by_us():
                raise HubNotFound(f"{self.title} has no dataset of ours")
            return data, set()
        if not is_ours(manifest):
            raise HubNotFound(f"{self.title} has no dataset of ours")
        folders = folders_of(manifest)
        ours = {name for name in data if name == MANIFEST or name.split("/")[0] in folders}
        return ours, data - ours

    def _begun_by_us(self) -> bool:
        """Whether everything in it is of a publishing of ours that did not come to its end."""
        api = self.client.api
        commits = self.client.call(
            f"read the history of {self.repo_id}",
            lambda: api.list_repo_commits(self.repo_id, repo_type="dataset"),
        )
        return len(commits) > 1 and all(
            commit.message.startswith(BY_US) for commit in commits[:-1]
        )

    def check_settings(self, info: DatasetInfo, private: bool, gated: Gate) -> None:
        """Sets the gate of one that is empty.

        Raises:
            HubConflict: its visibility or its gate is another than was asked for.
        """
        if bool(info.private) != private:
            now, wanted = ("private", "public") if info.private else ("public", "private")
            raise HubConflict(
                f"{self.title} is {now}, and {wanted} was asked for; nothing changes that "
                "silently: ask for what it is, or change it on its settings page"
            )
        gate = str(info.gated or "")
        if gate == gated:
            return
        if not names_of(info) <= {ATTRIBUTES}:
            raise HubConflict(
                f"{self.title} has {_GATES.get(gate, 'another gate')}, and {_GATES[gated]} was "
                "asked for; nothing changes that silently: ask for what it is, or change it on "
                "its settings page"
            )
        api = self.client.api
        self.client.call(
            f"set the gate of {self.repo_id}",
            lambda: api.update_repo_settings(
                self.repo_id, repo_type="dataset", gated=gated or False
            ),
        )


def names_of(info: DatasetInfo) -> set[str]:
    """Every file of the head."""
    return {sibling.rfilename for sibling in info.siblings or ()}
