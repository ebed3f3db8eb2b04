"""Prices of all products in all markets, from two CSV files; run it again after any change."""

from pathlib import Path

from rebaser_client import cel, python, read_csv
from rebaser_client.sync import connect

HERE = Path(__file__).parent
products, markets = read_csv(HERE / "products.csv"), read_csv(HERE / "markets.csv")
rows = [{**product, **market} for product in products for market in markets]

with connect() as client:
    shop = client.workspace("price-list").create(exist_ok=True)
    with shop.edit(confirm=lambda plan: print(plan) or True) as g:
        net = g.sources("net/{sku}", products, "net")
        fx = g.sources("fx/{market}", markets, "fx")
        tax = g.sources("tax/{market}", markets, "tax")
        local = g.values("local/{sku}/{market}", cel("net * fx"), rows, net=net, fx=fx)
        g.values("pays/{sku}/{market}", python("price"), rows, net=local, rate=tax, discounts=[])
    print("failed:", [value.name for value in g.failed])
