# Redis is needed only if the proxy has more than one replica: one replica counts in memory.

resource "azurerm_redis_cache" "this" {
  count                         = var.proxy_replicas > 1 ? 1 : 0
  name                          = "${var.name}-redis"
  location                      = azurerm_resource_group.this.location
  resource_group_name           = azurerm_resource_group.this.name
  capacity                      = 1
  family                        = "C"
  sku_name                      = "Standard"
  minimum_tls_version           = "1.2"
  non_ssl_port_enabled          = false
  public_network_access_enabled = var.redis_public_access

  redis_configuration {
    # An evicted counter would start a limit from zero.
    maxmemory_policy = "noeviction"
  }
}
