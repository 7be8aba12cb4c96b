"""Web pages at the server's `/`: search, documents, notes, uploads, jobs, the state of the engine.

```
request ─▶ routes: session, form token ─▶ the engine's operations ─▶ a template ─▶ HTML
```

They are rendered here and work without a script; the one script adds optional functions. Content of documents
cannot be executed: every value is escaped, and the content security policy permits only the files of this
package.
"""

from __future__ import annotations

from kb_server.pages.pages_settings import PagesSettings
from kb_server.parts import Part

PART = Part("pages", PagesSettings, site="kb_server.pages.routes:Pages")
