variable "name" {
  description = "Prefix of all resources"
  type        = string
  default     = "ingestion"
}

variable "location" {
  description = "Azure region"
  type        = string
  default     = "westeurope"
}

variable "image" {
  description = "Container image, built with deploy/docker/Dockerfile"
  type        = string
}

variable "proxy_replicas" {
  description = "Replicas of the ingestion proxy; 1 needs no Redis, at most 4 (store.nodes_max of the example)"
  type        = number
  default     = 1

  validation {
    condition     = var.proxy_replicas >= 1 && var.proxy_replicas <= 4
    error_message = "Use 1 to 4 replicas, or raise store.nodes_max in the configuration as well."
  }
}

variable "rate_limit" {
  description = "Requests per second that the vendor's contract allows, over all replicas"
  type        = string
  default     = "25"
}

variable "outage_policy" {
  description = "Policy while Redis does not answer: closed sends nothing, local sends a share"
  type        = string
  default     = "closed"
}

variable "redis_public_access" {
  description = "Whether Redis is reachable from outside the virtual network"
  type        = bool
  default     = true
}

variable "nivoda_endpoint" {
  description = "URL of the vendor's GraphQL API"
  type        = string
}

variable "nivoda_username" {
  type      = string
  sensitive = true
}

variable "nivoda_password" {
  type      = string
  sensitive = true
}

variable "internal_service_token" {
  description = "Token of internal callers, at least 16 characters"
  type        = string
  sensitive   = true
}

variable "internal_service_token_next" {
  description = "Second token during a rotation"
  type        = string
  sensitive   = true
  default     = ""
}

variable "customer_endpoint" {
  description = "URL of the service behind the customer gateway"
  type        = string
}
