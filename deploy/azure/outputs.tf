output "proxy_base_url" {
  description = "NIVODA_PROXY_BASE_URL of the callers"
  value       = "https://${azurerm_container_app.proxy.ingress[0].fqdn}"
}

output "log_analytics_workspace" {
  description = "Workspace in which the queries of queries.kql run"
  value       = azurerm_log_analytics_workspace.this.name
}
