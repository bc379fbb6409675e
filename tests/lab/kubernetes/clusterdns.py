#!/usr/bin/env python3
"""clusterdns.py ADDRESS PKI API: answers for the cluster's names, with the standard library alone.

A records of NAME.NAMESPACE.svc.cluster.local: a service's address, the pods of a headless one, and HOSTNAME.NAME.… of
such pods. Asks the API server at most twice a second."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import urllib.request
from typing import Any

MAX_AGE_S = 0.5
A_RECORD, TTL_S = 1, 2
ANSWERED, NO_SUCH_NAME = 0x8580, 0x8583


class Names:
    """What the cluster knows, as it was a moment ago."""

    def __init__(self, api: str, pki: str) -> None:
        self._api = api
        self._trust = ssl.create_default_context(cafile=f"{pki}/ca.crt")
        self._trust.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")
        self._asked = -MAX_AGE_S
        self._addresses: dict[str, list[str]] = {}

    def addresses(self, name: str) -> list[str] | None:
        if time.monotonic() - self._asked >= MAX_AGE_S:
            try:
                self._addresses = self._ask()
                self._asked = time.monotonic()
            except OSError as error:
                print("dns:", error, flush=True)
        return self._addresses.get(name)

    def _ask(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        headless = set()
        for service in self._items("services"):
            name, address = self._name(service), service["spec"].get("clusterIP")
            is_headless = address in (None, "", "None")
            found[name] = [] if is_headless else [address]
            headless |= {name} if is_headless else set()
        for endpoints in self._items("endpoints"):
            name = self._name(endpoints)
            for subset in endpoints.get("subsets") or []:
                for each in subset.get("addresses") or []:
                    if name in headless:
                        found[name].append(each["ip"])
                    if each.get("hostname"):
                        found[f"{each['hostname']}.{name}"] = [each["ip"]]
        return found

    def _items(self, kind: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self._api}/api/v1/{kind}", context=self._trust, timeout=5) as reply:
            items: list[dict[str, Any]] = json.load(reply)["items"]
            return items

    @staticmethod
    def _name(item: dict[str, Any]) -> str:
        return f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.cluster.local"


def answer(query: bytes, names: Names) -> bytes:
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += query[at] + 1
    end = at + 5
    kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
    known = names.addresses(".".join(labels).lower())
    given = known if known and kind == A_RECORD else []
    head = struct.pack(">HHHHH", NO_SUCH_NAME if known is None else ANSWERED, 1, len(given), 0, 0)
    records = [struct.pack(">HHHIH", 0xC00C, A_RECORD, 1, TTL_S, 4) + socket.inet_aton(each) for each in given]
    return query[:2] + head + query[12:end] + b"".join(records)


def main(address: str, pki: str, api: str) -> None:
    names = Names(api, pki)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind((address, 53))
        while True:
            query, peer = door.recvfrom(512)
            try:
                door.sendto(answer(query, names), peer)
            except Exception as error:  # the next one may be better
                print("dns:", repr(error), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
