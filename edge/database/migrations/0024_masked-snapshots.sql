ALTER TABLE `snapshots` ADD `masking_version` integer;--> statement-breakpoint
ALTER TABLE `snapshots` ADD `checked_at` integer;