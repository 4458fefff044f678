# The ingestion proxy: 0.25 vCPU and 0.5 GiB per replica, reachable only inside the environment.

locals {
  # Azure's form of the connection string, which Sluicegate reads as it is. Empty: memory.
  redis_connection_string = var.proxy_replicas > 1 ? azurerm_redis_cache.this[0].primary_connection_string : "none"

  proxy_secrets = {
    "internal-service-token"      = var.internal_service_token
    "internal-service-token-next" = coalesce(var.internal_service_token_next, "none")
    "nivoda-username"             = var.nivoda_username
    "nivoda-password"             = var.nivoda_password
    "redis-connection-string"     = local.redis_connection_string
  }

  proxy_secret_variables = merge(
    {
      "INTERNAL_SERVICE_TOKEN" = "internal-service-token"
      "NIVODA_USERNAME"        = "nivoda-username"
      "NIVODA_PASSWORD"        = "nivoda-password"
    },
    var.proxy_replicas > 1 ? { "REDIS_CONNECTION_STRING" = "redis-connection-string" } : {},
    # The test on the secret would make the map secret, too, and for_each refuses secret values.
    nonsensitive(var.internal_service_token_next != "") ? { "INTERNAL_SERVICE_TOKEN_NEXT" = "internal-service-token-next" } : {},
  )
}

resource "azurerm_container_app" "proxy" {
  name                         = "${var.name}-proxy"
  container_app_environment_id = azurerm_container_app_environment.this.id
  resource_group_name          = azurerm_resource_group.this.name
  # Two revisions side by side are the canary rollout: see docs/runbooks/rollout.md.
  revision_mode = "Multiple"

  dynamic "secret" {
    for_each = local.proxy_secrets
    content {
      name  = secret.key
      value = secret.value
    }
  }

  secret {
    name  = "config"
    value = file("${path.module}/../../examples/ingestion-proxy/sluicegate.yaml")
  }

  template {
    # The limit is the vendor's, so the proxy does not scale with load.
    min_replicas                     = var.proxy_replicas
    max_replicas                     = var.proxy_replicas
    termination_grace_period_seconds = 75

    volume {
      name         = "config"
      storage_type = "Secret"
    }

    container {
      name   = "proxy"
      image  = var.image
      cpu    = 0.25
      memory = "0.5Gi"
      args   = ["serve", "--config", "/etc/sluicegate/config", "--only", "gateway"]

      env {
        name  = "NIVODA_ENDPOINT"
        value = var.nivoda_endpoint
      }

      env {
        name  = "NIVODA_PROXY_RATE_LIMIT"
        value = var.rate_limit
      }

      env {
        name  = "NIVODA_PROXY_OUTAGE"
        value = var.outage_policy
      }

      dynamic "env" {
        for_each = local.proxy_secret_variables
        content {
          name        = env.key
          secret_name = env.value
        }
      }

      volume_mounts {
        name = "config"
        path = "/etc/sluicegate"
      }

      liveness_probe {
        transport = "HTTP"
        port      = 3001
        path      = "/health"
      }

      readiness_probe {
        transport = "HTTP"
        port      = 3001
        path      = "/ready"
      }
    }
  }

  ingress {
    external_enabled = false
    target_port      = 3001
    transport        = "http"

    traffic_weight {
      latest_revision = true
      percentage      = 100
    }
  }
}
