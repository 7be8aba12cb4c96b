"""Files into text, for the engine and for its simulator.

    file ── format ──▶ txt, md        decoded in a thread
                       other formats  read in a child with limits: `child` starts it, `worker` runs in it
                       jpg, png       no reader here: the engine reads them by OCR

A reader is a function from the bytes of one file to an `Extraction`. Files may be hostile, so a reader runs
in a process that can be killed: a file that exceeds a limit, or crashes its reader, fails alone. The readers
use the standard library, except for PDF (package pypdfium2, with PDFium), Office files from before 2007 and
Outlook messages (olefile, xlrd), and the grammars of source code.

Nothing is imported here: each file has a child of its own, which would import it too.
"""
