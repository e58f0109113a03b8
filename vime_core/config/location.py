"""Where the configuration files are."""

from __future__ import annotations

from pathlib import Path

import vime_core
from vime_core.errors import ConfigError


def conf_folder() -> Path:
    """The folder with `config.yaml`: inside the package when installed, beside it when installed editable.

    Raises:
        ConfigError: when the installation lacks it.
    """
    package = Path(vime_core.__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"vime-core in {package} lacks its configuration files; install it again")
