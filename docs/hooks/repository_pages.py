"""Makes one site of the whole repository: pages outside docs/ are part of it, links lead on.

Files of docs/ stand at the root of the site, the README is its first page, and every other file a
page links to keeps its path. So a link written for the repository is rewritten in one way only.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
PAGES += ["benchmarks/RESULTS.md", "benchmarks/lease.md"]

_LINK = re.compile(r"(```.*?^```)|(?<=\]\()([^)\s#]+)(?=[)#])", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and the files that pages link to."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + PAGES
    wanted = {path for page in pages for path in targets(page)}
    for path in sorted(wanted.union(PAGES)):
        uri = place(path)
        if files.get_file_from_path(uri) is None and (ROOT / path).is_file():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the links of a page as they lead within the site."""
    here = page.file.src_uri
    source = path_of(here)
    return _LINK.sub(lambda found: found[1] or relinked(found[2], source, here), markdown)


def relinked(link: str, source: str, here: str) -> str:
    """Return a link as it is to stand on the page `here`, which is the file `source`."""
    if "://" in link or link.startswith("mailto:"):
        return link
    return relpath(place(resolved(link, source)), str(PurePosixPath(here).parent))


def targets(source: str) -> list[str]:
    """Return the files that a file links to, as paths of the repository."""
    links = [found[2] for found in _LINK.finditer((ROOT / source).read_text()) if found[2]]
    return [resolved(link, source) for link in links if "://" not in link]


def resolved(link: str, source: str) -> str:
    """Return a link as a path of the repository."""
    return normpath(str(PurePosixPath(source).parent / link))


def place(path: str) -> str:
    """Return where a file of the repository stands in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def path_of(uri: str) -> str:
    """Return the file of the repository that stands there in the site."""
    if uri == "index.md":
        return "README.md"
    return uri if uri in PAGES else f"docs/{uri}"
