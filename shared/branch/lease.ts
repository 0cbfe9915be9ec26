import { z } from 'zod';

/** Seconds for which a lease lasts without a renewal. */
export const LeaseSeconds = z.int().min(30).max(3600).meta({
  description: 'Seconds until the lease ends. A branch whose lease ends is deleted.',
  example: 300,
});
