"""What several programs share: formats, and how daemons serve sockets, write a log and limit users.

Each format has one owner here. messages.py and pages.py are generated.
"""
