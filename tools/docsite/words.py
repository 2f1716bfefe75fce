"""Names that equations in docstrings use, and the words among them."""

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε", "zeta": "ζ",
    "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ", "lam": "λ", "mu": "μ", "nu": "ν",
    "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ",
    "omega": "ω", "Delta": "Δ", "Gamma": "Γ", "Lambda": "Λ", "Omega": "Ω", "Phi": "Φ", "Psi": "Ψ",
    "Sigma": "Σ", "Theta": "Θ",
}  # fmt: skip
# Names that stand upright before what they are taken of.
FUNCTIONS = frozenset((
    "agg", "argmax", "ceil", "clamp", "clip", "cos", "dev", "exp", "floor", "grad", "int", "ln",
    "log", "max", "mean", "med", "median", "min", "norm", "relu", "round", "sg", "sigmoid", "sign",
    "sim", "sin", "softmax", "softplus", "sqrt", "std", "sum", "tanh", "var", "KL", "MSE", "Var",
    "MAD",
))  # fmt: skip
# Log-probabilities, and what their names say of whose they are.
LOGP = {"logp": "p", "logq": "q"}
SHORT = ("old", "ref", "max", "min")  # subscripts of names that are words
# The last part of names that are words, not a subscript: `fork_at`.
PARTICLES = frozenset(("at", "by", "in", "of", "on", "to", "up", "is", "id", "kl", "lr"))
# No name of a number: before these "a" is a variable, not an article.
JOINING = frozenset((
    "if", "else", "for", "over", "of", "in", "and", "or", "is", "are", "to", "from", "with",
    "where", "within", "at", "by", "as", "on", "than", "the", "after", "before", "until", "while",
))  # fmt: skip
