"""`vime completion`: the shell completes commands, components, keys and values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """Print a script that lets the shell complete vime's commands, components, keys and values.

  bash: eval "$(vime completion bash)"     for good: put this line into ~/.bashrc
  zsh:  eval "$(vime completion zsh)"      after compinit; for good: into ~/.zshrc
  fish: vime completion fish | source      for good: into ~/.config/fish/config.fish
"""

BASH = """\
_vime() {
    local line="${COMP_LINE:0:COMP_POINT}" word prefix="" candidate
    word="${line##*[[:space:]]}"
    # Where bash takes = as the end of a word, it replaces only what follows.
    [[ $COMP_WORDBREAKS == *=* ]] && prefix="${word%"${word##*=}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$prefix"}")
    done < <("${COMP_WORDS[0]}" completion bash --line "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _vime vime
"""

ZSH = """\
_vime() {
    local -a found open closed
    found=(${(f)"$("${words[1]}" completion zsh --line "$LBUFFER" 2>/dev/null)"})
    open=(${(M)found:#*[=.]})
    closed=(${found:#*[=.]})
    if (( $#found )); then
        compadd -S '' -a open
        compadd -a closed
    else
        compset -P '*='
        _files
    fi
}
compdef _vime vime
"""

FISH = """\
complete -c vime -a '(vime completion fish --line (commandline --cut-at-cursor | string collect) 2>/dev/null)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the script of a shell, or what could come next."""
    parser = Parser("completion", DESCRIPTION)
    parser.add_argument("shell", choices=[*SCRIPTS], help="the shell")
    parser.add_argument("--line", metavar="TEXT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.line is None:
        print(SCRIPTS[options.shell], end="")
        return 0
    # Imported late: it composes a configuration, and the script needs none.
    from vime_core.cli.candidates import candidates

    print("".join(f"{candidate}\n" for candidate in candidates(options.line)), end="")
    return 0
