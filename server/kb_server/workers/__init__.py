"""Several processes that serve one port, and the parent that supervises them.

supervisor  the parent: accepts connections, hands them out in turn, restarts workers that died
child       a process of kb as its parent sees it; `kb up` starts engine and server the same way
link        what a child knows of its parent: when to end, whom to tell that it is ready
"""
