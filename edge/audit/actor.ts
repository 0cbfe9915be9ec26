/** Who does something, and from where; stands in the audit row of what they did. */
export interface Actor {
  userId: string;
  email: string;
  tenantId: string;
  ip: string | null;
  userAgent: string | null;
  requestId: string;
}
