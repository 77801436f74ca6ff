"""`octad fleet`."""

from __future__ import annotations

from octad.cli.options import AsJson
from octad.cli.output import clean, emit, say, table
from octad.cli.views import Json
from octad.client.connect import connect


def command(as_json: AsJson = False) -> None:
    """Show clusters, nodes and cards."""
    view = connect().json("GET", "/api/fleet")
    if as_json:
        emit(view)
        return
    if not view["clusters"]:
        say("no clusters are configured; see 'octad up --help'")
        return
    print(fleet_table(view))
    for cluster in view["clusters"]:
        print(f"\n{cluster['name']}  {cluster['address']}".rstrip())
        for node in cluster["nodes"]:
            state = "alive" if node["is_alive"] else "dead"
            print(f"  node {clean(node['id'])}  {node['address']}  {node['cards']} cards  {state}")
    if view["tracker_url"]:
        print(f"\nMLflow  {view['tracker_url']}")


def fleet_table(view: Json) -> str:
    """One row per cluster."""
    rows = [
        [
            cluster["name"],
            cluster["kind"],
            cluster["state"],
            cluster["card"]["name"],
            len(cluster["nodes"]),
            cluster["cards"],
            cluster["cards_free"],
            cluster["reason"],
        ]
        for cluster in view["clusters"]
    ]
    return table(("cluster", "kind", "state", "card", "nodes", "cards", "free", "reason"), rows)
