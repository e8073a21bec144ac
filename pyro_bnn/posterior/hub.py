"""
Posteriors in repositories of the Hugging Face Hub: `hf://user/name`, `hf://user/name@revision`.

A repository holds `posterior.safetensors`, `posterior.json`, their `manifest.json`, and what else travels of a run
(:data:`pyro_bnn.posterior.archive.NAMES`); its README is the card, with the metadata that the hub reads. It is pushed
as one commit. Of what is there, the files of that list are fetched and no others: safetensors, JSON and text, never a
pickle.

A posterior is fetched like this: `manifest.json` of the revision, which says the commit; of the same commit the files
that it lists, of which it has the sizes, so that they are compared with the limit `download_bytes` before they are
fetched, and with what comes while it comes; then every file has to have the SHA-256 that is listed. What is in the
cache of huggingface_hub and damaged is fetched once more. Without a network, what is in that cache is taken.

It needs the extra `hub` (huggingface_hub), whose settings apply: HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE. It is
tested against a server on the same machine that speaks as much of the hub's protocol as is used, and was never run
against the real hub.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyro_bnn.common.errors import BadFile, Refused, is_own, summary
from pyro_bnn.common.limits import check_limit, in_words, limits_now
from pyro_bnn.common.manifest import MANIFEST, Damaged, parse_manifest, read_listed
from pyro_bnn.common.reading import read_bytes
from pyro_bnn.posterior.archive import CARD, NAMES, NEEDED, sealed_contents
from pyro_bnn.version import __version__

__all__ = ["Address", "fetch", "import_hub", "parse_address", "push"]

README = "README.md"
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


class Address:
    """
    A repository and, if it is given, a branch, tag or commit of it.

    :param repo: `user/name`.
    :param revision: the branch, tag or commit; None for the newest.

    >>> str(parse_address("hf://user/digits@v1")), parse_address("hf://user/digits").revision
    ('hf://user/digits@v1', None)
    """

    def __init__(self, repo: str, revision: str | None = None) -> None:
        self.repo, self.revision = repo, revision

    def __str__(self) -> str:
        return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")


def parse_address(text: str) -> Address:
    """
    Read `hf://user/name` or `hf://user/name@revision`.

    :param text: the address.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise Refused(f"{text!r:.120} is no address of the hub: give hf://USER/NAME or hf://USER/NAME@REVISION")
    return Address(found["repo"], found["revision"])


def import_hub() -> Any:
    """Return the package huggingface_hub, or say how to get it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ValueError('an address hf://... needs huggingface_hub: pip install "pyro-bnn[hub]"') from error


@contextmanager
def _said_plainly(what: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into the library's errors."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise FileNotFoundError(
            f"{what}: not there, or private and closed to your token ({summary(error)}): give an address that "
            f"exists, or log in with `hf auth login`"
        ) from error
    except Exception as error:
        if is_own(error):
            raise
        raise BadFile(
            f"{what} ({summary(error)}): try again; HF_ENDPOINT and HF_TOKEN say where and as whom"
        ) from error


# -- fetching ----------------------------------------------------------------------------------------------------------


def fetch(text: str) -> Path:
    """
    Return the folder, in the cache of huggingface_hub, that holds the posterior at an address.

    :param text: `hf://user/name`, with `@revision` for a branch, tag or commit.
    """
    address = parse_address(text)
    import_hub()
    with _said_plainly(f"{address} could not be fetched"):
        try:
            return _fetched(address, anew=False)
        except Damaged:
            return _fetched(address, anew=True)


def _fetched(address: Address, *, anew: bool) -> Path:
    manifest = _one(address.repo, MANIFEST, address.revision, limits_now().json_bytes, anew=anew)
    folder = manifest.parent  # of one commit, after which it is named
    entries = parse_manifest(read_bytes(manifest, "json_bytes"), f"{address}: {MANIFEST}")
    missing = [name for name in NEEDED if name not in entries]
    if missing:
        raise BadFile(f"{address} holds no posterior: its {MANIFEST} lists no {' and no '.join(missing)}")
    names = [name for name in NAMES if name in entries]
    sizes = {name: entries[name]["bytes"] for name in names}
    if min(sizes.values()) < 0:
        raise BadFile(f"{address}: its {MANIFEST} lists a file of less than no bytes")
    total = sum(sizes.values())
    check_limit("download_bytes", total, f"bytes of {address}", so=in_words(total))
    for name in names:
        _one(address.repo, name, folder.name, sizes[name], anew=anew)
    read_listed(folder, names)
    return folder


def _one(repo: str, name: str, revision: str | None, most: int, *, anew: bool) -> Path:
    """Return a file of a repository in the cache, fetched if it is not there; of at most so many bytes."""
    return Path(
        import_hub().hf_hub_download(
            repo,
            name,
            revision=revision,
            library_name="pyro-bnn",
            library_version=__version__,
            force_download=anew,
            tqdm_class=_counting(f"{name} of hf://{repo}", most),
        )
    )


def _counting(what: str, most: int) -> Any:
    """Return a progress bar that ends a transfer of more bytes than were declared."""
    bar: Any = importlib.import_module("huggingface_hub.utils").tqdm

    class Counting(bar):  # type: ignore[misc]
        """A progress bar of huggingface_hub that counts what comes."""

        come = 0

        def update(self, n: float | None = 1) -> Any:
            """Count; more than was declared is refused."""
            self.come += int(n or 0)
            if self.come > most:
                raise BadFile(f"{what} has more than the {most:,} bytes that were declared: it is not what it says")
            return super().update(n)

    return Counting


# -- pushing -----------------------------------------------------------------------------------------------------------


def push(
    contents: Mapping[str, bytes],
    text: str,
    readme: str,
    *,
    private: bool | None = None,
    message: str = "A posterior",
    token: str | None = None,
) -> str:
    """
    Put files of a posterior and a README into a repository, as one commit; return its address with the commit.

    The repository is made if it is not there. Files of it that this commit does not name stay.

    :param contents: the posterior's files by name.
    :param text: `hf://user/name`, with `@branch` for a branch that exists.
    :param readme: Markdown for the repository's README.
    :param private: of a repository that is made; default what the user's settings say.
    :param message: of the commit.
    :param token: default that of HF_TOKEN or of `hf auth login`.
    """
    address = parse_address(text)
    hub = import_hub()
    files = {
        **sealed_contents({name: held for name, held in contents.items() if name != CARD}),
        README: readme.encode(),
    }
    with _said_plainly(f"{address} could not be pushed to"):
        api = hub.HfApi(token=token, library_name="pyro-bnn", library_version=__version__)
        api.create_repo(address.repo, private=private, exist_ok=True)
        done = api.create_commit(
            address.repo,
            [hub.CommitOperationAdd(name, held) for name, held in sorted(files.items())],
            commit_message=message,
            revision=address.revision,
        )
    return str(Address(address.repo, str(done.oid)))
