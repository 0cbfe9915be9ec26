ALTER TABLE `hosts` ADD `description` text;--> statement-breakpoint
ALTER TABLE `hosts` ADD `described_at` integer;