ALTER TABLE `hosts` ADD `region` text;--> statement-breakpoint
ALTER TABLE `hosts` ADD `capacity` integer;