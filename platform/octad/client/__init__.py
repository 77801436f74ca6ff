"""Calls to a control plane, for the command line and for notebooks.

    from octad.client.calls import Client
    from octad.client.connect import connect

    print(Client(connect()).runs())

Nothing is imported here, because every command waits for it.
"""
