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
