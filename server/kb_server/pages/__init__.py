"""Pages for people, at the server's `/`: search, documents, notes, uploads, jobs, the state of the engine.

```
request ─▶ routes: session, form token ─▶ the engine's operations ─▶ a template ─▶ HTML
```

They are rendered here and work without a script; the one script adds what only a script can. Nothing that a
page shows can run: every value is escaped, and the policy admits the files of this package alone.
"""
