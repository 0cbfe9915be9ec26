/**
 * Rules of the host for a source. A tenant's source is hostile: its address and its content are chosen to
 * reach what is not the tenant's. A host of the same operator was chosen by the gateway, and has the same roles.
 */
export interface SourcePolicy {
  /** Only public addresses and those that the operator allows: no look at what only this host can reach. */
  readonly onlyPublicAddresses: boolean;
  /** Following takes one of the places of the tenant. */
  readonly takesTenantPlace: boolean;
  /** Tables and rows that the login cannot read are reported. A host that a project leaves closes them itself. */
  readonly reportsHidden: boolean;
  /**
   * A trigger that fires always writes its rows twice: once by itself, once among the changes. Such a table has no
   * changes that can be followed.
   */
  readonly excludesAlwaysTriggers: boolean;
  /** The schema is compared at the cut-over by a print from before the copy, and nothing may be left out of it. */
  readonly mustBeComplete: boolean;
  /** Both servers have the same roles, so privileges are copied, and policies are kept as they are. */
  readonly sameRoles: boolean;
}

const TENANT_SOURCE: SourcePolicy = {
  onlyPublicAddresses: true,
  takesTenantPlace: true,
  reportsHidden: true,
  excludesAlwaysTriggers: false,
  mustBeComplete: false,
  sameRoles: false,
};

const OWN_HOST: SourcePolicy = {
  onlyPublicAddresses: false,
  takesTenantPlace: false,
  reportsHidden: false,
  excludesAlwaysTriggers: true,
  mustBeComplete: true,
  sameRoles: true,
};

/** The policy of a call: without the flag of the gateway, a source is the tenant's. */
export const policyOf = ({ of_host }: { of_host?: boolean | undefined }): SourcePolicy =>
  of_host === true ? OWN_HOST : TENANT_SOURCE;
