"""The parts that all commands share: options from settings, errors as lines, tables and JSON.

Needs the `cli` extra. Exit codes are the same everywhere:

    0    done
    1    done, but something is wrong: `check` found problems, `load` did not send some lines, output was lost
    2    not done: bad input, bad settings, no server, or a refusal; one line on stderr says why
    130  interrupted
"""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common.cli.columns import Column as Column
    from lisa_common.cli.options import JsonFlag as JsonFlag, YesFlag as YesFlag, with_settings as with_settings
    from lisa_common.cli.output import (
        folded as folded,
        print_json as print_json,
        print_json_list as print_json_list,
        print_table as print_table,
        say as say,
        shown_duration as shown_duration,
        shown_exactly as shown_exactly,
        shown_moment as shown_moment,
    )
    from lisa_common.cli.parse import (
        DURATION_FORM as DURATION_FORM,
        read_duration as read_duration,
        read_headers as read_headers,
        read_moment as read_moment,
        read_ms as read_ms,
    )
    from lisa_common.cli.program import (
        EXIT_FINE as EXIT_FINE,
        EXIT_INTERRUPTED as EXIT_INTERRUPTED,
        EXIT_NOT_DONE as EXIT_NOT_DONE,
        EXIT_WRONG as EXIT_WRONG,
        Declined as Declined,
        add_commands as add_commands,
        confirm as confirm,
        interrupts_restored as interrupts_restored,
        new_program as new_program,
        sub_commands as sub_commands,
    )
    from lisa_common.cli.progress_bar import progress as progress
    from lisa_common.cli.waiting import WaitOption as WaitOption, wait_s as wait_s
    from lisa_common.escaping import shown as shown


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common.cli.options": "JsonFlag YesFlag with_settings",
            "lisa_common.cli.output": (
                "folded print_json print_json_list print_table say shown_duration shown_exactly shown_moment"
            ),
            "lisa_common.cli.parse": "DURATION_FORM read_duration read_headers read_moment read_ms",
            "lisa_common.cli.program": (
                "EXIT_FINE EXIT_INTERRUPTED EXIT_NOT_DONE EXIT_WRONG "
                "Declined add_commands confirm interrupts_restored new_program sub_commands"
            ),
            "lisa_common.cli.progress_bar": "progress",
            "lisa_common.cli.columns": "Column",
            "lisa_common.cli.waiting": "WaitOption wait_s",
            "lisa_common.escaping": "shown",
        },
    )
