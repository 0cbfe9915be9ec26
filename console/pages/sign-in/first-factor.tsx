import { Note } from '../../components/feedback.tsx';
import { Field } from '../../components/field.tsx';
import {
  BackToSignIn,
  CodeField,
  NewPasswordField,
  PasswordField,
  RecoveryCodeField,
  StepForm,
  Way,
} from './form.tsx';
import { companyAddress, type Methods, nextStep, type Step, signIn, stepFor } from './steps.ts';

interface FormProps {
  go: (step: Step) => void;
}

/** @param email which was entered in a step before */
const EmailField = ({ email }: { email?: string | undefined }) => (
  <Field
    label="E-mail address"
    name="email"
    type="email"
    autoComplete="username"
    defaultValue={email}
    required
    autoFocus
  />
);

interface EmailFormProps extends FormProps {
  /** What the gateway offers to everyone; undefined while it is read. */
  ways: Methods | undefined;
}

export const EmailForm = ({ go, ways }: EmailFormProps) => (
  <StepForm
    go={go}
    action="Continue"
    submit={async (value) => stepFor(value('email'), await signIn.methods(value('email')))}
    more={
      ways?.sign_up && (
        <Way go={go} to={{ name: 'sign_up' }}>
          Create an account
        </Way>
      )
    }
  >
    <EmailField />
  </StepForm>
);

interface IdentifiedProps extends FormProps {
  step: Extract<Step, { name: 'password' | 'company' | 'owner_code' }>;
  /** Where the sign-in leads. */
  target: { returnTo: string; cli: string | undefined };
}

const CompanyLink = ({ step, target }: Omit<IdentifiedProps, 'go'>) => (
  <a className="button wide" href={companyAddress(step, target)}>
    Continue with {step.methods.sso?.name}
  </a>
);

export const PasswordForm = ({ step, go, target }: IdentifiedProps) => (
  <>
    {step.methods.sso && (
      <>
        <CompanyLink step={step} target={target} />
        <p className="or">or</p>
      </>
    )}
    {target.cli === undefined ? (
      <StepForm
        go={go}
        action="Sign in"
        submit={async (value) => nextStep(await signIn.password(step.email, value('password')))}
        more={
          <>
            {step.methods.methods.includes('code') && (
              <>
                <Way go={go} to={{ name: 'mail', email: step.email }}>
                  Sign in with a code
                </Way>
                <Way go={go} to={{ name: 'reset_start', email: step.email }}>
                  Forgot password?
                </Way>
              </>
            )}
            <Way go={go} to={{ name: 'email' }}>
              Another address
            </Way>
          </>
        }
      >
        <Field
          label="E-mail address"
          name="email"
          type="email"
          autoComplete="username"
          value={step.email}
          readOnly
        />
        <PasswordField />
      </StepForm>
    ) : (
      <div className="stack">
        <Note>
          To sign in the command line with a password, run <code>branchgate login --email {step.email}</code>
        </Note>
        <BackToSignIn go={go} />
      </div>
    )}
  </>
);

export const CompanyForm = ({ step, go, target }: IdentifiedProps) => (
  <div className="stack">
    <p className="quiet">Addresses like {step.email} sign in with the identity provider of their company.</p>
    <CompanyLink step={step} target={target} />
    <div className="row ways">
      <Way go={go} to={{ ...step, name: 'owner_code' }}>
        The provider is unavailable
      </Way>
      <Way go={go} to={{ name: 'email' }}>
        Another address
      </Way>
    </div>
  </div>
);

export const OwnerCodeForm = ({ step, go }: Omit<IdentifiedProps, 'target'>) => (
  <StepForm
    go={go}
    action="Sign in"
    more={
      <Way go={go} to={{ ...step, name: 'company' }}>
        Back to the sign-in
      </Way>
    }
    submit={async (value) => nextStep(await signIn.ownerCode(step.email, value('code')))}
  >
    <p className="quiet">
      An owner can sign in once with the recovery code of the team. All owners are notified by mail.
    </p>
    <RecoveryCodeField />
  </StepForm>
);

interface AddressProps extends FormProps {
  step: Extract<Step, { name: 'mail' | 'reset_start' }>;
}

export const MailForm = ({ step, go }: AddressProps) => (
  <StepForm
    go={go}
    action="Send a code"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'code', email, challengeId: (await signIn.startMail(email)).challenge_id };
    }}
  >
    <p className="quiet">We mail a code to your address. It expires in 10 minutes.</p>
    <EmailField email={step.email} />
  </StepForm>
);

export const SignUpForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action="Create an account"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      const { verification } = await signIn.signUp(value('name'), email, value('password'));
      return { name: 'code', email, challengeId: verification.challenge_id };
    }}
  >
    <Field label="Your name" name="name" autoComplete="name" maxLength={100} required autoFocus />
    <Field label="E-mail address" name="email" type="email" autoComplete="username" required />
    <NewPasswordField />
  </StepForm>
);

export const ResetStartForm = ({ step, go }: AddressProps) => (
  <StepForm
    go={go}
    action="Send a code"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'reset', email, challengeId: (await signIn.startReset(email)).challenge_id };
    }}
  >
    <p className="quiet">We mail a code with which you set a new password. All your sessions end.</p>
    <EmailField email={step.email} />
  </StepForm>
);

export function InvitationForm({ go, invitation }: FormProps & { invitation: string | undefined }) {
  return (
    <StepForm
      go={go}
      action="Join"
      more={<BackToSignIn go={go} />}
      submit={async (value) => {
        const body = {
          email: value('email'),
          invitation_id: value('invitation_id'),
          code: value('code'),
          name: value('name'),
          password: value('password'),
        };
        return nextStep(await signIn.accept(body));
      }}
    >
      <Field label="Invitation" name="invitation_id" defaultValue={invitation} className="mono" required />
      <Field label="E-mail address" name="email" type="email" autoComplete="username" required />
      <Field label="Your name" name="name" autoComplete="name" maxLength={100} required />
      <NewPasswordField />
      <CodeField />
    </StepForm>
  );
}

interface MailedProps<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

export const CodeForm = ({ step, go }: MailedProps<'code'>) => (
  <StepForm
    go={go}
    action="Continue"
    submit={async (value) => nextStep(await signIn.code(step.email, step.challengeId, value('code')))}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">
      If {step.email} can be used here, a mail with a code of six digits is on its way. It expires in 10
      minutes.
    </p>
    <CodeField />
  </StepForm>
);

export const ResetForm = ({ step, go }: MailedProps<'reset'>) => (
  <StepForm
    go={go}
    action="Set the password"
    submit={async (value) => {
      const { email, challengeId: challenge_id } = step;
      await signIn.reset({ email, challenge_id, code: value('code'), new_password: value('password') });
      return { name: 'email' };
    }}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">
      If {step.email} can be used here, a mail with a code of six digits is on its way. It expires in 10
      minutes.
    </p>
    <CodeField />
    <NewPasswordField label="New password" />
  </StepForm>
);
