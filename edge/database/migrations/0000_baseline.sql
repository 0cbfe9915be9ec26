CREATE TABLE `audit_events` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`actor_type` text,
	`actor_id` text,
	`actor_email` text,
	`tenant_id` text NOT NULL,
	`project_id` text,
	`branch_id` text,
	`ip` text,
	`user_agent` text,
	`request_id` text,
	`metadata` text NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `audit_by_tenant` ON `audit_events` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `audit_by_project` ON `audit_events` (`project_id`);--> statement-breakpoint
CREATE INDEX `audit_by_actor` ON `audit_events` (`actor_id`);--> statement-breakpoint
CREATE TABLE `branch_credentials` (
	`branch_id` text NOT NULL,
	`role` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_password` text NOT NULL,
	`revision` integer DEFAULT 0 NOT NULL,
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`branch_id`, `role`),
	FOREIGN KEY (`branch_id`) REFERENCES `project_branches`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `host_authority` (
	`id` text PRIMARY KEY NOT NULL,
	`certificate` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_key` text NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `hosts` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`db_host` text NOT NULL,
	`direct_port` integer NOT NULL,
	`pooled_port` integer NOT NULL,
	`ca_certificate` text,
	`public_key` text,
	`enrolment_token_hash` text,
	`enrolment_expires_at` integer,
	`enrolled_at` integer,
	`draining` integer DEFAULT false NOT NULL,
	`region` text,
	`capacity` integer,
	`system_identifier` text,
	`role` text DEFAULT 'primary' NOT NULL,
	`standby_of` text,
	`generation` integer DEFAULT 0 NOT NULL,
	`applied_generation` integer DEFAULT 0 NOT NULL,
	`yields_since` integer,
	`sync` text DEFAULT 'off' NOT NULL,
	`free_bytes` integer,
	`description` text,
	`described_at` integer,
	`created_at` integer NOT NULL,
	CONSTRAINT "hosts_role" CHECK("hosts"."role" IN ('primary', 'closing', 'standby', 'fenced')),
	CONSTRAINT "hosts_standby_of" CHECK(("hosts"."standby_of" IS NOT NULL) = ("hosts"."role" IN ('standby', 'fenced')))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `hosts_name_unique` ON `hosts` (`name`);--> statement-breakpoint
CREATE UNIQUE INDEX `hosts_enrolment_token_hash_unique` ON `hosts` (`enrolment_token_hash`);--> statement-breakpoint
CREATE TABLE `idempotency_keys` (
	`tenant_id` text NOT NULL,
	`user_id` text NOT NULL,
	`path` text NOT NULL,
	`key` text NOT NULL,
	`body_hash` text NOT NULL,
	`job_id` text NOT NULL,
	`status` integer,
	`body` text,
	`expires_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `user_id`, `path`, `key`)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `idempotency_by_job` ON `idempotency_keys` (`job_id`);--> statement-breakpoint
CREATE INDEX `idempotency_by_expiry` ON `idempotency_keys` (`expires_at`);--> statement-breakpoint
CREATE TABLE `jobs` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`branch_id` text,
	`kind` text NOT NULL,
	`input` text NOT NULL,
	`status` text NOT NULL,
	`steps` text NOT NULL,
	`error` text,
	`attempts` integer DEFAULT 0 NOT NULL,
	`host_id` text NOT NULL,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `jobs_by_project` ON `jobs` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `jobs_open` ON `jobs` (`host_id`) WHERE status in ('queued', 'running');--> statement-breakpoint
CREATE INDEX `jobs_of_moves` ON `jobs` (`host_id`,`updated_at`) WHERE kind = 'project.move';--> statement-breakpoint
CREATE TABLE `named_networks` (
	`name` text PRIMARY KEY NOT NULL,
	`version` integer NOT NULL,
	`ranges` text NOT NULL,
	`previous` text NOT NULL,
	`changed_at` integer NOT NULL,
	`checked_at` integer NOT NULL,
	`failed_at` integer
);
--> statement-breakpoint
CREATE TABLE `network_rules` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`branch_id` text,
	`cidr` text NOT NULL,
	`description` text,
	`source` text NOT NULL,
	`via` text DEFAULT 'all' NOT NULL,
	`revision` integer NOT NULL,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer,
	`list_version` integer DEFAULT 0 NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`branch_id`) REFERENCES `project_branches`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `network_rules_project_once` ON `network_rules` (`project_id`,`cidr`) WHERE branch_id is null;--> statement-breakpoint
CREATE UNIQUE INDEX `network_rules_branch_once` ON `network_rules` (`branch_id`,`cidr`) WHERE branch_id is not null;--> statement-breakpoint
CREATE INDEX `network_rules_by_project` ON `network_rules` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `organization_members` (
	`organization_id` text NOT NULL,
	`user_id` text NOT NULL,
	`role` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`organization_id`, `user_id`),
	FOREIGN KEY (`organization_id`) REFERENCES `organizations`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`user_id`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `organizations` (
	`id` text PRIMARY KEY NOT NULL,
	`idp_tenant_id` text NOT NULL,
	`name` text,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `organizations_idp_tenant_id_unique` ON `organizations` (`idp_tenant_id`);--> statement-breakpoint
CREATE TABLE `project_branches` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`parent_branch_id` text,
	`branch_name` text NOT NULL,
	`database_name` text NOT NULL,
	`source_database` text NOT NULL,
	`status` text DEFAULT 'active' NOT NULL,
	`lifespan` text DEFAULT '7d' NOT NULL,
	`expires_at` integer,
	`deletes_at` integer,
	`ttl_seconds` integer,
	`lease_seconds` integer,
	`lease_ends_at` integer,
	`labels` text DEFAULT '{}' NOT NULL,
	`data` text DEFAULT 'full' NOT NULL,
	`keep_tables` text DEFAULT '[]' NOT NULL,
	`masking_version` integer,
	`checked_at` integer,
	`connection_attempts` integer DEFAULT 50 NOT NULL,
	`has_own_attempts` integer DEFAULT false NOT NULL,
	`settings` text DEFAULT '{}' NOT NULL,
	`is_default` integer DEFAULT false NOT NULL,
	`protected` integer DEFAULT false NOT NULL,
	`undone_to` integer,
	`hold` text,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`blocks` text DEFAULT '[]' NOT NULL,
	`own_bytes` integer,
	`shared_bytes` integer,
	`deleted_at` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`parent_branch_id`) REFERENCES `project_branches`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `branches_name` ON `project_branches` (`project_id`,`branch_name`) WHERE status not in ('deleted', 'failed');--> statement-breakpoint
CREATE UNIQUE INDEX `branches_database` ON `project_branches` (`database_name`) WHERE status not in ('deleted', 'failed');--> statement-breakpoint
CREATE INDEX `branches_by_project` ON `project_branches` (`project_id`);--> statement-breakpoint
CREATE INDEX `branches_live` ON `project_branches` (`project_id`,`is_default`,`created_at`) WHERE status <> 'deleted';--> statement-breakpoint
CREATE INDEX `branches_live_name` ON `project_branches` (`project_id`,`branch_name`) WHERE status <> 'deleted';--> statement-breakpoint
CREATE INDEX `branches_by_parent` ON `project_branches` (`parent_branch_id`);--> statement-breakpoint
CREATE TABLE `projects` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`app_key` text NOT NULL,
	`requested_app_key` text,
	`env` text NOT NULL,
	`status` text NOT NULL,
	`branch_limit` integer DEFAULT 10 NOT NULL,
	`leased_branch_limit` integer,
	`storage_quota_cap_gib` real DEFAULT 5 NOT NULL,
	`storage_quota_gib` real DEFAULT 0.25 NOT NULL,
	`storage_used_bytes` integer DEFAULT 0 NOT NULL,
	`storage_state` text DEFAULT 'normal' NOT NULL,
	`storage_measured_at` integer,
	`connection_attempts` integer DEFAULT 50 NOT NULL,
	`masked_only` integer DEFAULT false NOT NULL,
	`spares` integer,
	`snapshot_schedule` text,
	`snapshot_due_at` integer,
	`blocks_observed_at` integer,
	`host_id` text NOT NULL,
	`durability` text DEFAULT 'async' NOT NULL,
	`failed_over_at` integer,
	`survived_until` integer,
	`owes_notice` integer DEFAULT false NOT NULL,
	`dns_name` text,
	`dns_target` text,
	`access_revision` integer DEFAULT 0 NOT NULL,
	`access_applied` integer DEFAULT 0 NOT NULL,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`host_id`) REFERENCES `hosts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `projects_app_key_env` ON `projects` (`app_key`,`env`) WHERE status <> 'failed';--> statement-breakpoint
CREATE INDEX `projects_by_tenant` ON `projects` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `projects_by_creator` ON `projects` (`created_by`);--> statement-breakpoint
CREATE INDEX `projects_by_host` ON `projects` (`host_id`);--> statement-breakpoint
CREATE TABLE `snapshots` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`branch_id` text NOT NULL,
	`branch_name` text NOT NULL,
	`name` text,
	`kind` text NOT NULL,
	`number` integer,
	`status` text NOT NULL,
	`independent` integer DEFAULT false NOT NULL,
	`size_bytes` integer DEFAULT 0 NOT NULL,
	`own_bytes` integer,
	`shared_bytes` integer,
	`spares` integer,
	`data` text DEFAULT 'full' NOT NULL,
	`keep_tables` text DEFAULT '[]' NOT NULL,
	`masking_version` integer,
	`checked_at` integer,
	`rules` text DEFAULT '[]' NOT NULL,
	`taken_at` integer NOT NULL,
	`expires_at` integer,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `snapshots_by_project` ON `snapshots` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `snapshots_by_branch` ON `snapshots` (`branch_id`);--> statement-breakpoint
CREATE TABLE `tenant_caps` (
	`tenant_id` text PRIMARY KEY NOT NULL,
	`project_limit` integer,
	`storage_quota_limit_gib` real,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `users` (
	`id` text PRIMARY KEY NOT NULL,
	`issuer` text NOT NULL,
	`gid` text NOT NULL,
	`email` text NOT NULL,
	`role` text NOT NULL,
	`tenant_id` text NOT NULL,
	`tenant_seen_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `users_identity` ON `users` (`issuer`,`gid`);--> statement-breakpoint
CREATE TABLE `accounts` (
	`id` text PRIMARY KEY NOT NULL,
	`email` text NOT NULL,
	`name` text NOT NULL,
	`password_hash` text NOT NULL,
	`role` text NOT NULL,
	`tenant_id` text NOT NULL,
	`version` integer DEFAULT 0 NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `accounts_email_unique` ON `accounts` (`email`);--> statement-breakpoint
CREATE INDEX `accounts_by_tenant` ON `accounts` (`tenant_id`);--> statement-breakpoint
CREATE TABLE `api_keys` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`secret_hash` text NOT NULL,
	`role` text NOT NULL,
	`scopes` text NOT NULL,
	`permissions` text DEFAULT '[]' NOT NULL,
	`project_id` text,
	`branch_pattern` text,
	`cidrs` text,
	`expires_at` integer NOT NULL,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `api_keys_by_tenant` ON `api_keys` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `invitations` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`email` text NOT NULL,
	`role` text NOT NULL,
	`invited_by` text NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`invited_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `invitations_once` ON `invitations` (`tenant_id`,`email`);--> statement-breakpoint
CREATE INDEX `invitations_by_tenant` ON `invitations` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `owner_invitations` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`email` text NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `owner_invitations_tenant_id_unique` ON `owner_invitations` (`tenant_id`);--> statement-breakpoint
CREATE TABLE `project_members` (
	`project_id` text NOT NULL,
	`user_id` text NOT NULL,
	`role` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`project_id`, `user_id`),
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`user_id`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `project_members_by_user` ON `project_members` (`user_id`);--> statement-breakpoint
CREATE TABLE `recovery_codes` (
	`issuer` text NOT NULL,
	`gid` text NOT NULL,
	`hash` text NOT NULL,
	PRIMARY KEY(`issuer`, `gid`, `hash`)
);
--> statement-breakpoint
CREATE TABLE `refresh_tokens` (
	`id` text PRIMARY KEY NOT NULL,
	`family_id` text NOT NULL,
	`account_id` text NOT NULL,
	`used_at` integer,
	`expires_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `refresh_tokens_by_family` ON `refresh_tokens` (`family_id`);--> statement-breakpoint
CREATE INDEX `refresh_tokens_by_expiry` ON `refresh_tokens` (`expires_at`);--> statement-breakpoint
CREATE TABLE `second_factors` (
	`issuer` text NOT NULL,
	`gid` text NOT NULL,
	`method` text NOT NULL,
	`key_id` text,
	`sealed_secret` text,
	`last_step` integer,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`issuer`, `gid`)
);
--> statement-breakpoint
CREATE TABLE `sessions` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`ip` text,
	`user_agent` text,
	`last_used_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `sessions_by_account` ON `sessions` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `sessions_by_expiry` ON `sessions` (`expires_at`);--> statement-breakpoint
CREATE TABLE `trusts` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`issuer` text NOT NULL,
	`audience` text NOT NULL,
	`claims` text NOT NULL,
	`role` text NOT NULL,
	`branch_pattern` text,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `trusts_by_project` ON `trusts` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `identity_providers` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`kind` text NOT NULL,
	`name` text NOT NULL,
	`issuer` text NOT NULL,
	`client_id` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_secret` text NOT NULL,
	`default_role` text NOT NULL,
	`role_claim` text,
	`roles` text NOT NULL,
	`scim_token_hash` text,
	`created_by` text,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `identity_providers_scim_token_hash_unique` ON `identity_providers` (`scim_token_hash`);--> statement-breakpoint
CREATE UNIQUE INDEX `identity_providers_once` ON `identity_providers` (`tenant_id`,`issuer`);--> statement-breakpoint
CREATE TABLE `provider_domains` (
	`provider_id` text NOT NULL,
	`domain` text NOT NULL,
	`tenant_id` text NOT NULL,
	`verification` text NOT NULL,
	`verified_at` integer,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`provider_id`, `domain`),
	FOREIGN KEY (`provider_id`) REFERENCES `identity_providers`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `provider_domains_verified` ON `provider_domains` (`domain`) WHERE "provider_domains"."verified_at" is not null;--> statement-breakpoint
CREATE TABLE `provider_group_members` (
	`group_id` text NOT NULL,
	`person_id` text NOT NULL,
	PRIMARY KEY(`group_id`, `person_id`),
	FOREIGN KEY (`group_id`) REFERENCES `provider_groups`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`person_id`) REFERENCES `provider_people`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `provider_group_members_by_person` ON `provider_group_members` (`person_id`);--> statement-breakpoint
CREATE TABLE `provider_groups` (
	`id` text PRIMARY KEY NOT NULL,
	`provider_id` text NOT NULL,
	`display_name` text NOT NULL,
	`external_id` text,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`provider_id`) REFERENCES `identity_providers`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `provider_groups_name` ON `provider_groups` (`provider_id`,`display_name`);--> statement-breakpoint
CREATE TABLE `provider_people` (
	`id` text PRIMARY KEY NOT NULL,
	`provider_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`subject` text,
	`user_name` text NOT NULL,
	`external_id` text,
	`email` text NOT NULL,
	`role` text NOT NULL,
	`claim_values` text NOT NULL,
	`provisioned` integer NOT NULL,
	`active` integer NOT NULL,
	`deleted_at` integer,
	`attributes` text NOT NULL,
	`version` integer DEFAULT 0 NOT NULL,
	`signed_in_at` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`provider_id`) REFERENCES `identity_providers`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `provider_people_subject` ON `provider_people` (`provider_id`,`subject`);--> statement-breakpoint
CREATE INDEX `provider_people_user_name` ON `provider_people` (`provider_id`,`user_name`);--> statement-breakpoint
CREATE INDEX `provider_people_by_tenant` ON `provider_people` (`tenant_id`);--> statement-breakpoint
CREATE TABLE `provider_refresh_tokens` (
	`id` text PRIMARY KEY NOT NULL,
	`family_id` text NOT NULL,
	`person_id` text NOT NULL,
	`used_at` integer,
	`expires_at` integer NOT NULL,
	FOREIGN KEY (`person_id`) REFERENCES `provider_people`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `provider_refresh_tokens_by_family` ON `provider_refresh_tokens` (`family_id`);--> statement-breakpoint
CREATE INDEX `provider_refresh_tokens_by_expiry` ON `provider_refresh_tokens` (`expires_at`);--> statement-breakpoint
CREATE TABLE `provider_sessions` (
	`id` text PRIMARY KEY NOT NULL,
	`person_id` text NOT NULL,
	`provider_id` text NOT NULL,
	`checked_at` integer NOT NULL,
	`key_id` text,
	`sealed_refresh` text,
	`ip` text,
	`user_agent` text,
	`last_used_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`person_id`) REFERENCES `provider_people`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `provider_sessions_by_person` ON `provider_sessions` (`person_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `provider_sessions_by_expiry` ON `provider_sessions` (`expires_at`);--> statement-breakpoint
CREATE TABLE `sign_in_policies` (
	`tenant_id` text PRIMARY KEY NOT NULL,
	`sso_required` integer NOT NULL,
	`recovery_hash` text,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `masking_keys` (
	`project_id` text PRIMARY KEY NOT NULL,
	`key_id` text NOT NULL,
	`sealed_key` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `masking_policies` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`version` integer NOT NULL,
	`rules` text NOT NULL,
	`unlisted` text NOT NULL,
	`created_by` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `masking_policies_version` ON `masking_policies` (`project_id`,`version`);--> statement-breakpoint
CREATE TABLE `follows` (
	`project_id` text PRIMARY KEY NOT NULL,
	`branch_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`job_id` text NOT NULL,
	`state` text NOT NULL,
	`source` text NOT NULL,
	`publication` text,
	`tables` text DEFAULT '[]' NOT NULL,
	`problem` text,
	`observed_at` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `import_sources` (
	`job_id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_url` text NOT NULL,
	`copied` text,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`job_id`) REFERENCES `jobs`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `drains` (
	`host_id` text PRIMARY KEY NOT NULL,
	`branches` text NOT NULL,
	`drops_snapshots` integer NOT NULL,
	`failed` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`host_id`) REFERENCES `hosts`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `moves` (
	`project_id` text PRIMARY KEY NOT NULL,
	`job_id` text NOT NULL,
	`from_host_id` text NOT NULL,
	`to_host_id` text NOT NULL,
	`phase` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_password` text,
	`admitted_at` text,
	`follows` integer,
	`branches` text NOT NULL,
	`away_since` integer,
	`fenced_at` integer,
	`kept_until` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `moves_to` ON `moves` (`to_host_id`);--> statement-breakpoint
CREATE INDEX `moves_from` ON `moves` (`from_host_id`);--> statement-breakpoint
CREATE TABLE `event_outbox` (
	`seq` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))) NOT NULL,
	`type` text NOT NULL,
	`project_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`branch_names` text NOT NULL,
	`machine_id` text,
	`data` text NOT NULL,
	`created_at` integer DEFAULT (cast(unixepoch('subsec') * 1000 as integer)) NOT NULL
);
--> statement-breakpoint
CREATE INDEX `event_outbox_by_project` ON `event_outbox` (`project_id`,`seq`);--> statement-breakpoint
CREATE TABLE `webhooks` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`project_id` text,
	`url` text NOT NULL,
	`events` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_secret` text NOT NULL,
	`disabled_at` integer,
	`created_by` text NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `webhooks_by_tenant` ON `webhooks` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `audit_exports` (
	`id` text PRIMARY KEY NOT NULL,
	`event_id` text NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `differences` (
	`job_id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`result` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`job_id`) REFERENCES `jobs`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `differences_by_project` ON `differences` (`project_id`,`created_at`);--> statement-breakpoint
-- Changes of records become events of the outbox (docs/decisions/events.md). drizzle-kit does not know triggers.
CREATE TRIGGER `project_inserted` AFTER INSERT ON `projects` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', NEW.id, NEW.tenant_id, '[]', json_object('status', NEW.status);
END;
--> statement-breakpoint
CREATE TRIGGER `project_changed` AFTER UPDATE OF `status` ON `projects` FOR EACH ROW
WHEN OLD.status <> NEW.status
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', NEW.id, NEW.tenant_id, '[]', json_object('status', NEW.status);
END;
--> statement-breakpoint
CREATE TRIGGER `project_deleted` AFTER DELETE ON `projects` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', OLD.id, OLD.tenant_id, '[]', json_object('status', 'deleted');
END;
--> statement-breakpoint
CREATE TRIGGER `branch_inserted` AFTER INSERT ON `project_branches` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `branch_changed` AFTER UPDATE OF `status`, `expires_at`, `labels`, `blocks` ON `project_branches` FOR EACH ROW
WHEN OLD.status <> NEW.status OR OLD.expires_at IS NOT NEW.expires_at OR OLD.labels <> NEW.labels OR OLD.blocks <> NEW.blocks
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `branch_deleted` AFTER DELETE ON `project_branches` FOR EACH ROW
WHEN OLD.status <> 'deleted'
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', OLD.project_id, OLD.tenant_id, iif(OLD.is_default, '[]', json_array(OLD.branch_name)), json_object('branch_id', OLD.id, 'branch_name', OLD.branch_name, 'status', 'deleted', 'expires_at', OLD.expires_at, 'labels', json(OLD.labels), 'blocks', json(OLD.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_inserted` AFTER INSERT ON `network_rules` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = NEW.branch_id AND NOT b.is_default), json_object('network_rule_id', NEW.id, 'branch_id', NEW.branch_id, 'cidr', NEW.cidr, 'status', 'pending');
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_applied` AFTER UPDATE OF `access_applied` ON `projects` FOR EACH ROW
WHEN OLD.access_applied <> NEW.access_applied
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', NEW.id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = r.branch_id AND NOT b.is_default), json_object('network_rule_id', r.id, 'branch_id', r.branch_id, 'cidr', r.cidr, 'status', iif(r.revision <= NEW.access_applied, 'applied', 'pending'))
	FROM `network_rules` r
	WHERE r.project_id = NEW.id AND (r.revision <= OLD.access_applied) <> (r.revision <= NEW.access_applied)
	ORDER BY r.created_at, r.id;
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_deleted` AFTER DELETE ON `network_rules` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', OLD.project_id, OLD.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = OLD.branch_id AND NOT b.is_default), json_object('network_rule_id', OLD.id, 'branch_id', OLD.branch_id, 'cidr', OLD.cidr, 'status', 'deleted');
END;
--> statement-breakpoint
CREATE TRIGGER `job_inserted` AFTER INSERT ON `jobs` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `machine_id`, `data`)
	SELECT 'job.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id IN (SELECT value FROM json_each(coalesce(json_extract(NEW.input, '$.branchIds'), json_array(NEW.branch_id)))) AND NOT b.is_default), json_extract(NEW.input, '$.actor.machine.id'), json_object('job_id', NEW.id, 'branch_id', NEW.branch_id, 'kind', NEW.kind, 'status', NEW.status, 'steps', json(NEW.steps), 'error', json(NEW.error), 'attempts', NEW.attempts);
END;
--> statement-breakpoint
CREATE TRIGGER `job_changed` AFTER UPDATE OF `status`, `steps`, `error`, `attempts` ON `jobs` FOR EACH ROW
WHEN OLD.status <> NEW.status OR OLD.steps <> NEW.steps OR OLD.error IS NOT NEW.error OR OLD.attempts <> NEW.attempts
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `machine_id`, `data`)
	SELECT 'job.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id IN (SELECT value FROM json_each(coalesce(json_extract(NEW.input, '$.branchIds'), json_array(NEW.branch_id)))) AND NOT b.is_default), json_extract(NEW.input, '$.actor.machine.id'), json_object('job_id', NEW.id, 'branch_id', NEW.branch_id, 'kind', NEW.kind, 'status', NEW.status, 'steps', json(NEW.steps), 'error', json(NEW.error), 'attempts', NEW.attempts);
END;
--> statement-breakpoint
CREATE TRIGGER `storage_changed` AFTER UPDATE OF `storage_state` ON `projects` FOR EACH ROW
WHEN OLD.storage_state <> NEW.storage_state
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'storage.changed', NEW.id, NEW.tenant_id, '[]', json_object('state', NEW.storage_state, 'used_bytes', NEW.storage_used_bytes);
END;
--> statement-breakpoint
CREATE TRIGGER `snapshot_changed` AFTER UPDATE OF `status`, `independent` ON `snapshots` FOR EACH ROW
WHEN NEW.kind <> 'deleted' AND NEW.status = 'ready' AND (OLD.status <> NEW.status OR OLD.independent <> NEW.independent)
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'snapshot.changed', NEW.project_id, NEW.tenant_id, iif(NEW.branch_name = 'main', '[]', json_array(NEW.branch_name)), json_object('snapshot_id', NEW.id, 'branch_id', NEW.branch_id, 'name', NEW.name, 'kind', NEW.kind, 'status', 'ready', 'independent', json(iif(NEW.independent, 'true', 'false')));
END;
--> statement-breakpoint
CREATE TRIGGER `snapshot_deleted` AFTER DELETE ON `snapshots` FOR EACH ROW
WHEN OLD.kind <> 'deleted' AND OLD.status = 'ready'
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'snapshot.changed', OLD.project_id, OLD.tenant_id, iif(OLD.branch_name = 'main', '[]', json_array(OLD.branch_name)), json_object('snapshot_id', OLD.id, 'branch_id', OLD.branch_id, 'name', OLD.name, 'kind', OLD.kind, 'status', 'deleted', 'independent', json(iif(OLD.independent, 'true', 'false')));
END;
--> statement-breakpoint
CREATE TRIGGER `branch_held` AFTER UPDATE OF `hold` ON `project_branches` FOR EACH ROW
WHEN OLD.hold IS NOT NEW.hold
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks), 'hold', NEW.hold);
END;
--> statement-breakpoint
CREATE TRIGGER `follow_inserted` AFTER INSERT ON `follows` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('branch_id', NEW.branch_id, 'state', NEW.state, 'source', json(NEW.source), 'problem', json(NEW.problem));
END;
--> statement-breakpoint
CREATE TRIGGER `follow_changed` AFTER UPDATE OF `state`, `problem` ON `follows` FOR EACH ROW
WHEN OLD.state <> NEW.state OR OLD.problem IS NOT NEW.problem
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('branch_id', NEW.branch_id, 'state', NEW.state, 'source', json(NEW.source), 'problem', json(NEW.problem));
END;
--> statement-breakpoint
CREATE TRIGGER `follow_deleted` AFTER DELETE ON `follows` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', OLD.project_id, OLD.tenant_id, '[]', json_object('branch_id', OLD.branch_id, 'state', 'deleted', 'source', json(OLD.source), 'problem', json(NULL));
END;
--> statement-breakpoint
CREATE TRIGGER `project_failed_over` AFTER UPDATE OF `failed_over_at` ON `projects` FOR EACH ROW
WHEN OLD.failed_over_at IS NOT NEW.failed_over_at
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.failed_over', NEW.id, NEW.tenant_id, '[]', json_object('survived_until', NEW.survived_until);
END;
