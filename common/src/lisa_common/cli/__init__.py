"""The parts that all commands share: options from settings, errors as lines, tables and JSON.

Needs the `cli` extra. Exit codes are the same everywhere:

    0    done
    1    done, but something is wrong: `check` found problems, `load` did not send some lines, output was lost
    2    not done: bad input, bad settings, no server, or a refusal; one line on stderr says why
    130  interrupted
"""
