import { BRANCH_ROLES, type BranchRole, branchOfLogin, loginName } from '../../shared/branch/login.ts';

/** Parts of the URL by which a client of SQL over HTTP names its branch and login. */
export interface ConnectionString {
  branchId: string;
  role: BranchRole;
  database: string;
  password: string;
  applicationName: string;
}

const LOGIN = /^u_[0-9a-f]{32}_/;
/** PostgreSQL's NAMEDATALEN without its end. */
const NAME_LENGTH = 63;

/** @returns null for a text that is not the URL of a login of a branch */
export function readConnectionString(text: string): ConnectionString | null {
  try {
    const url = new URL(text);
    if (!['postgres:', 'postgresql:'].includes(url.protocol)) return null;
    const login = decodeURIComponent(url.username);
    if (!LOGIN.test(login)) return null;
    const branchId = branchOfLogin(login);
    const role = BRANCH_ROLES.find((one) => loginName(branchId, one) === login);
    if (!role) return null;
    return {
      branchId,
      role,
      database: decodeURIComponent(url.pathname.slice(1)),
      password: decodeURIComponent(url.password),
      applicationName: printable(url.searchParams.get('application_name') ?? ''),
    };
  } catch {
    return null;
  }
}

/** PostgreSQL shows every other character as `?`. */
const printable = (name: string) => name.replace(/[^\x20-\x7e]/g, '?').slice(0, NAME_LENGTH);
