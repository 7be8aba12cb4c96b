"""Files into text, for the engine and for its simulator.

    file ── format ──▶ txt, md     decoded in a thread
                       the others  read in a child process with limits: `child` starts it, `worker` runs in it
                       jpg, png    no reader here: the engine brings its own, by OCR

A reader is a function from the bytes of one file to an `Extraction`. What it is given may be hostile, so it
runs where it can be ended: a file that breaks a limit, or its reader, fails alone. The readers stand on the
standard library, but for PDF, which PDFium reads (package pypdfium2).

Nothing is imported here: each file has a child of its own, which would import it too.
"""
