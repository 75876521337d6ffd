"""Schema migrations, run by Alembic when a store is opened.

To change the schema: change ``tables.py``, add ``versions/vNNNN_what.py`` after the pattern of the
last one (written out, never built from ``tables.py``, which moves on), append its revision to
``schema.REVISIONS``. A test holds the migrated schema against ``tables.py``. There is no
``downgrade``: a store is restored from a backup.
"""
