CREATE TABLE `named_networks` (
	`name` text PRIMARY KEY NOT NULL,
	`version` integer NOT NULL,
	`ranges` text NOT NULL,
	`previous` text NOT NULL,
	`changed_at` integer NOT NULL,
	`checked_at` integer NOT NULL
);
--> statement-breakpoint
ALTER TABLE `network_rules` ADD `list_version` integer DEFAULT 0 NOT NULL;