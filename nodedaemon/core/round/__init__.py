"""The pass over one device that follows every event.

It decides which session goes first, in which lane, with which bytes, and when the next pass is needed.
"""
