ALTER TABLE `hosts` ADD `sync` text DEFAULT 'off' NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `durability` text DEFAULT 'async' NOT NULL;