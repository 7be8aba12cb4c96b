"""`kb export` and `kb import`: a base as a folder of texts that a person can read, and a base made of it.

    FOLDER/<collection>/<name>-<number>.md      the text of a document
    FOLDER/<collection>/<name>-<number>.json    what else is known of it, and where its passages stand
    FOLDER/kb-export.json                       when it was made, of what, and its collections; written last

layout.py    these files, written and read; what does not fit is refused
command.py   the two commands

A note has the text that was sent. Of a file the base has passages alone; what lies between two of them is
white space, and stands here as empty lines, so that every passage is where it was.
"""
