/** Spec 5.6: a time-based code of an app, or a code by e-mail. */
export const SECOND_FACTOR_METHODS = ['totp', 'email'] as const;
export type SecondFactorMethod = (typeof SECOND_FACTOR_METHODS)[number];
