# The customer service: it uses neither the vendor's limit nor Redis, so a failure of the ingestion does not
# reach it.

resource "azurerm_container_app" "customers" {
  name                         = "${var.name}-customers"
  container_app_environment_id = azurerm_container_app_environment.this.id
  resource_group_name          = azurerm_resource_group.this.name
  revision_mode                = "Single"

  secret {
    name  = "config"
    value = file("${path.module}/../../examples/ingestion-proxy/customers.yaml")
  }

  template {
    min_replicas = 2
    max_replicas = 10

    volume {
      name         = "config"
      storage_type = "Secret"
    }

    http_scale_rule {
      name                = "requests"
      concurrent_requests = "50"
    }

    container {
      name   = "customers"
      image  = var.image
      cpu    = 0.5
      memory = "1Gi"
      args   = ["serve", "--config", "/etc/sluicegate/config", "--only", "gateway"]

      env {
        name  = "CUSTOMER_ENDPOINT"
        value = var.customer_endpoint
      }

      volume_mounts {
        name = "config"
        path = "/etc/sluicegate"
      }

      readiness_probe {
        transport = "HTTP"
        port      = 3002
        path      = "/ready"
      }
    }
  }

  ingress {
    external_enabled = true
    target_port      = 3002
    transport        = "http"

    traffic_weight {
      latest_revision = true
      percentage      = 100
    }
  }
}
