CREATE TABLE `oauth_clients` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`redirect_uris` text NOT NULL,
	`last_used_at` integer NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `oauth_clients_by_use` ON `oauth_clients` (`last_used_at`);--> statement-breakpoint
CREATE TABLE `oauth_grants` (
	`id` text PRIMARY KEY NOT NULL,
	`client_id` text NOT NULL,
	`client_name` text NOT NULL,
	`role` text NOT NULL,
	`scopes` text NOT NULL,
	`permissions` text DEFAULT '[]' NOT NULL,
	`project_id` text,
	`branch_pattern` text,
	`session_id` text,
	`provider_session_id` text,
	`code_hash` text NOT NULL,
	`code_expires_at` integer NOT NULL,
	`redirect_uri` text NOT NULL,
	`code_challenge` text NOT NULL,
	`resource` text NOT NULL,
	`refresh_id` text,
	`previous_refresh_id` text,
	`refreshed_at` integer,
	`expires_at` integer NOT NULL,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`session_id`) REFERENCES `sessions`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`provider_session_id`) REFERENCES `provider_sessions`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `oauth_grants_code_hash_unique` ON `oauth_grants` (`code_hash`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_tenant` ON `oauth_grants` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_user` ON `oauth_grants` (`created_by`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_client` ON `oauth_grants` (`client_id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_project` ON `oauth_grants` (`project_id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_session` ON `oauth_grants` (`session_id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_provider_session` ON `oauth_grants` (`provider_session_id`);