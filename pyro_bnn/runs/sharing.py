"""
Posteriors at addresses, and finished runs made ready to be handed on.

An address is `hf://user/name[@revision]` (:mod:`pyro_bnn.posterior.hub`) or that of an archive on the web
(:mod:`pyro_bnn.posterior.web`); it stands wherever a run or posterior is named. What it leads to is fetched into the
user's cache and is a folder from then on.
"""

import hashlib
from pathlib import Path

from pyro_bnn.common.files import atomic_write, write_text
from pyro_bnn.common.reading import parse_json
from pyro_bnn.posterior.archive import CARD, files_of, pack
from pyro_bnn.posterior.description import read_description
from pyro_bnn.posterior.hub import parse_address
from pyro_bnn.posterior.hub import push as push_files
from pyro_bnn.posterior.readme import readme
from pyro_bnn.runs.folder import RESULTS
from pyro_bnn.runs.loading import posterior_folder

__all__ = ["export", "push"]


def export(path: str | Path, out: str | Path) -> str:
    """
    Write the posterior of a run, and its recipe, results, history and card, as one archive; return its SHA-256.

    The same files give the same bytes. Beside it is `OUT.sha256`, as sha256sum writes it.

    :param path: a run folder, a saved posterior, the name of a shipped one, or an address.
    :param out: a file that ends in .zip.
    """
    file = Path(out)
    if file.suffix != ".zip":
        raise ValueError(f"{out} is no archive's name: give one that ends in .zip")
    content = pack(files_of(posterior_folder(path)))
    sha256 = hashlib.sha256(content).hexdigest()
    with atomic_write(file) as stream:
        stream.write(content)
    write_text(file.with_name(f"{file.name}.sha256"), f"{sha256}  {file.name}\n")
    return sha256


def push(
    path: str | Path,
    address: str,
    *,
    card: str | Path | None = None,
    license: str | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """
    Put the posterior of a run, and its recipe, results, history and card, into a repository of the Hugging Face Hub.

    Its address there is returned, with the commit.

    :param path: a run folder, a saved posterior, or the name of a shipped one.
    :param address: `hf://user/name`; the repository is made if it is not there.
    :param card: a file of Markdown for the README; default the run's `card.md`, else what the posterior says.
    :param license: the identifier of a licence, such as "mit"; left out by default.
    :param private: of a repository that is made; default what the user's settings say.
    :param token: default that of HF_TOKEN or of `hf auth login`.
    """
    repository, folder = f"hf://{parse_address(address).repo}", posterior_folder(path)
    contents = files_of(folder)
    info = read_description(contents["posterior.json"], folder / "posterior.json")["info"]
    text = contents[CARD].decode() if CARD in contents else None
    if card is not None:
        text = Path(card).read_text(encoding="utf-8")
    scores = None
    if RESULTS in contents:
        scores = parse_json(contents[RESULTS], str(folder / RESULTS), dict).get("test", {}).get("s_draws")
    said = readme(info, repository, card=text, scores=scores, license=license)
    return push_files(contents, address, said, private=private, token=token)
