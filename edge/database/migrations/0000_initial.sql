CREATE TABLE `audit_events` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
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
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`branch_id`, `role`),
	FOREIGN KEY (`branch_id`) REFERENCES `project_branches`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `hosts` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`db_host` text NOT NULL,
	`direct_port` integer NOT NULL,
	`pooled_port` integer NOT NULL,
	`public_key` text,
	`enrolment_token_hash` text,
	`enrolment_expires_at` integer,
	`enrolled_at` integer,
	`created_at` integer NOT NULL
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
CREATE TABLE `network_rules` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`branch_id` text,
	`cidr` text NOT NULL,
	`description` text,
	`source` text NOT NULL,
	`revision` integer NOT NULL,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
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
	`ttl_seconds` integer,
	`is_default` integer DEFAULT false NOT NULL,
	`protected` integer DEFAULT false NOT NULL,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
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
CREATE TABLE `projects` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`app_key` text NOT NULL,
	`env` text NOT NULL,
	`status` text NOT NULL,
	`branch_limit` integer DEFAULT 10 NOT NULL,
	`host_id` text NOT NULL,
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
CREATE UNIQUE INDEX `users_identity` ON `users` (`issuer`,`gid`);